"""Changes of a model, each `Model -> Model`: one file and one row in the registry for each."""
