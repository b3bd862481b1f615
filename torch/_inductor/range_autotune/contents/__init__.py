"""Any value as a digest of its content: what counts of data, functions, classes and ops."""
