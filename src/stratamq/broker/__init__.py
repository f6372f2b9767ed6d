"""What a broker knows and decides: topics, groups, offsets, clients, waiting pulls."""
