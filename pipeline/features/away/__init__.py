"""Measures on phones that no cable reaches: a campaign goes there as a package, its results come back as sessions.

A package has all that one platform needs, to the last byte of each request; whoever has the phone runs it without
Python, network or adb. A session is what one phone did with a package.
"""
