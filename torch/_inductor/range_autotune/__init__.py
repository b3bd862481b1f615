"""
Choosing the implementation of a custom op for every size that it meets at run time.

One module for each step of the decision, in the order in which a call of
``torch.compile`` walks through them: ``registration`` (what competes where), ``regions``
(an op and its neighbours), ``call_site`` (what the op was called with), ``candidates``
(each one traced once), ``inputs`` (benchmark inputs for one size), ``measure`` (times and
winners), ``dispatch`` (winners to one graph); ``lowering`` is the walk itself. ``ranges``
holds the values they all speak in, ``cache_key`` what a registration contributes to the
FX graph cache key, ``stale_code`` what a new registration does to code compiled before.
"""
