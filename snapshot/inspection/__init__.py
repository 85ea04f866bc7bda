"""Can a tree be saved and brought back, and if not, what is in the way?

`facts` holds what was seen (values), `rules` judges it (pure: the table of what CRIU refuses, with
the words for people), everything else only reads: /proc, and the kernel's table of UNIX sockets.
Nothing here changes or stops a program, except `stopping`, which says so. Import `snapshot.proctree`.
"""
