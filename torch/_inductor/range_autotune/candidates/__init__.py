"""What competes at a call site: each candidate called, traced, checked, in all its forms."""
