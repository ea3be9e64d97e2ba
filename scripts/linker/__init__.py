"""Links the modules that a quick verb needs into one, when the package is built.

To find, read and execute fifteen modules takes a shell verb as long as all that it does. The linked module
of a verb holds the same definitions, without what the verb does not reach. It is made of the sources alone,
and never committed.
"""
