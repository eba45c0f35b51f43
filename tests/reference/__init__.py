"""A slow solver of the equations in docs/model.md, written from that page alone, that judges the engine."""
