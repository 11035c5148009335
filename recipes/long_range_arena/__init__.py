"""Long Range Arena: ListOps, Text, Retrieval, Image, Pathfinder with four kinds of attention."""
