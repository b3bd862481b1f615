"""Registered ops: their bodies, their functional variants, and how they stay whole in graphs."""
