"""Request handlers of broker and name server, one file a family; each method names the code it serves."""
