"""Pure plan of a Link: the change to the link of the cluster, the mirrors to promote, and the status."""
