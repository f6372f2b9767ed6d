"""The only code that opens, maps, syncs or renames; it moves bytes without knowing what they mean."""
