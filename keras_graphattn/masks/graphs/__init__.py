"""Masks over graphs: diffusion, random walks and random features, and their parts."""
