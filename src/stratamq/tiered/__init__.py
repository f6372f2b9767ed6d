"""The cold tier: messages of the log store in a folder or an object store, readable in the same offset space.

One owner for each queue seals what is waiting, uploads it, commits a manifest and expires; nobody else decides about
that queue. Why it is built like this: docs/design/cold-tier.md.
"""
