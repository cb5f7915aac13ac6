"""What an index type costs and finds: recall of the graph, memory and disk."""
