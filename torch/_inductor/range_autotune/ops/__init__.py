"""What is known of registered ops: the functions that compute them, and their variants."""
