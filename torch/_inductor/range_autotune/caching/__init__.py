"""What may be used again, and until when: times on disk, compiled code."""
