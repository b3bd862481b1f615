"""
Choosing the implementation of a custom op for every size that it meets at run time.

A module here for each step, and a folder for what a step needs. In the order in which a call
of ``torch.compile`` walks through the main ones: ``registration`` (what competes where),
``regions`` (an op and its neighbours), ``call_site`` (what the op was called with),
``candidates`` (each one traced once), ``measuring`` (each range's candidates run and timed),
``winners`` (the choice, a pure function of times), ``dispatch`` (winners to one graph);
``lowering`` is the walk itself. ``ranges`` holds the values they all speak in. The map of
all modules is in the README.
"""
