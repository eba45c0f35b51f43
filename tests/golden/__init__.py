"""Golden values: the worked examples, computed by the tests themselves."""
