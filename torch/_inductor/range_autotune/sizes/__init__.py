"""What is known of sizes: guards on them, the values they may have, and what follows from both."""
