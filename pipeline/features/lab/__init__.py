"""A campaign on the hosts of a lab: submitted once, worked on by an agent on each host, closed by anybody.

The campaign's own engine does the work; what is here carries it as data: the stored campaign, and files by content.
"""
