"""What may be used again, and what names it: contents as digests, times on disk, stale code."""
