"""Talk under torture: agents speak, overhear and take notes while processes, network and server fail."""
