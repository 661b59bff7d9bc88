"""Links in the controller: changes to links at the request of operators, creation of mirrors, and promotions.

The decisions are made by `links`. This package must not know how the records of a mirror are copied.
"""
