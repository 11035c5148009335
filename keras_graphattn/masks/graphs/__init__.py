"""Masks over graphs: diffusion, random walks and random features, and what they are made of."""
