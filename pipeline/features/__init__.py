"""What the product does beyond the engine: a folder for each feature, with its command, its work and its report.

A feature imports the engine (the other packages of pipeline/) and, where ALLOWED says so, another feature. The engine
never imports a feature: where it has a place for something that features know (`pipeline.core.features.Place`), OFFERS
names the functions that stand there; a feature may have such places for others, too. tests/without_feature.py takes
each folder and its rows away and looks at the rest.
"""

ALLOWED: dict[str, frozenset[str]] = {
    "android": frozenset({"packages"}),
    "apple": frozenset({"packages"}),
    "flows": frozenset({"app_data"}),
}
"""The features that a feature may import: they go with it when they go."""

OFFERS: dict[str, tuple[str, ...]] = {
    "find.sources": ("imports.job:make_model",),
    "find.flows": ("flows.compose:made_of",),
    "init.tables": ("app_data.beside:tables_of",),
    "models.attachments": ("app_data.attach:attachment",),
    "models.tokens": ("app_data.texts:tokens",),
    "models.text_tokens": ("app_data.texts:tokens_in_manifest",),
    "models.oracles": ("app_data.oracle:confirmed",),
    "dataset.app_data": ("app_data.app_samples:samples",),
    "passes.more": ("app_data.attach:passes",),
    "campaign.searches": ("tune.answers:tune_report",),
    "report.listings": ("tune.report:listings",),
    "report.since": ("pairs.comparison:since",),
    "ship.objections": ("android.package:objections", "apple.package:objections"),
    "ship.proofs": ("prove.run:attested",),
    "ship.vectors": ("vectors.made:vectors",),
    "android.guard": ("guard.java:classes",),
    "android.trials": ("guard.helper:helpers",),
    "android.requests": ("guard.helper:request",),
    "apple.guard": ("guard.swift:sources",),
    "snippet.guard": ("guard.cpp:headers",),
    "release.self_tests": ("guard.bundle:self_tests",),
    "convert.options": ("diff.command:convert_options",),
    "convert.changes": ("diff.command:convert_changes",),
    "run.plan_options": ("pilot.command:options",),
    "run.instead_of_job": ("pilot.command:plan",),
    "bundle.commands": (
        "updates.command:delta",
        "updates.command:apply",
        "guard.command:deny",
        "model_package.command:package",
        "vectors.command:replay",
    ),
    "release.commands": ("android.command:android", "apple.command:apple", "languages.command:snippet"),
    "release.checks": ("android.library:check_config", "apple.package:check_config"),
    "release.packages": ("android.library:package", "apple.package:package"),
}
"""By the name of a place: `feature.module:function` of what stands there, in order."""
