"""Flags under torture: many contend for each, and a fenced resource knows who held it when."""
