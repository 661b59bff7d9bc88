"""Access of callers: ACLs, modes, decisions and their explanations (rules Z4 to Z9). The package is pure.

`runtime` compiles the ACLs in the mirror with this package, and `server` uses the package to decide every call.
"""
