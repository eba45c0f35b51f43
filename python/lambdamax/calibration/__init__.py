"""Profiles fitted to measurements: files in, constants with their errors out, and what shipped ones are worth."""
