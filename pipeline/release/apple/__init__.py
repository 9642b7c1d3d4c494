"""A bundle's models as a Swift package, with classes that open them as they were released."""
