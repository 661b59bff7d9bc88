"""Pages about topics: the list, one topic, its changes and its cleaning."""
