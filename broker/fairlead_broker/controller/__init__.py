"""What the controller decides: who leads, and how topics come, grow, change and go.

Plain functions from what is registered to the transactions that should follow; `coordination` runs them. Must have no
clock, loop, disk, network or chance.
"""
