"""Masks over trees: forests as data, the products that use their distances, and the mask `Tree`."""
