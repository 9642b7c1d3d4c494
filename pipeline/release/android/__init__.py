"""A bundle as an Android library in a Maven repository, with Java classes that open its models."""
