"""The name server: which broker owns which topic."""
