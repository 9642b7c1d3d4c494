"""What stages of a feature cannot be: refused before a model is read, and then of the models."""

from collections.abc import Mapping

import msgspec

from pipeline import config as configs
from pipeline.core.errors import ConfigError
from pipeline.features.flows import whole as flow_whole
from pipeline.features.flows.member import StageModel
from pipeline.model import edit as onnx_edit


def refuse(feature: configs.FeatureConfig, tables: Mapping[str, configs.ModelConfig], where: str) -> None:
    """Raise ConfigError for what no model has to be read for."""
    names = [stage.run for stage in feature.flow]
    for number, stage in enumerate(feature.flow):
        at = f"{where}, stage {stage.run}"
        if stage.run not in tables:
            raise ConfigError(
                f"no model is called {stage.run!r}",
                where=at,
                why=f"[[models]] has {', '.join(tables) or 'none'}",
                remedy="give one of them this `name`",
            )
        if stage.run in names[:number]:
            raise ConfigError(
                f"the model {stage.run} runs twice",
                where=at,
                why="values are named by the model that gives them",
                remedy="give it a second time under [[models]], with another `name`",
            )
        for name, feed in stage.feeds.items():
            _refuse_feed(feed, stage.when, f"{at}, {name}")
            before = flow_whole.stage_of(feed.source or "", names)
            if before is not None and before not in names[:number]:
                raise ConfigError(
                    f"{feed.source!r} is not there yet",
                    where=f"{at}, {name}",
                    why=f"{before} runs {'behind it' if before != stage.run else 'in this very stage'}",
                    remedy="put the stages in the order in which they run; what comes back from the step before is a "
                    "`state`",
                )
    _refuse_names(feature, names, where)
    steps = [stage.run for stage in feature.flow if stage.when is configs.When.STEP]
    if bool(steps) != bool(feature.until) or len(steps) > 1 or (steps and names[-1] != steps[0]):
        raise ConfigError(
            "the loop is not whole",
            where=where,
            why=f'{len(steps)} stages have when = "step", and `until` is {"there" if feature.until else "not there"}',
            remedy='give the last stage, and no other, when = "step", and `until` with from, token and most',
        )
    if feature.source:
        raise ConfigError(
            "`source` of a feature",
            where=where,
            why="its file is made of the models that its stages run",
            remedy="give it to one of [[models]]",
        )


def _refuse_names(feature: configs.FeatureConfig, stages: list[str], where: str) -> None:
    """ConfigError for names of inputs and outputs that the graph has for its own values, and for one that is both."""
    sources = (feed.source for stage in feature.flow for feed in stage.feeds.values())
    own = {source for source in sources if source and flow_whole.stage_of(source, stages) is None}
    gives = {*feature.outputs, *(["tokens"] if feature.until else [])}
    for name in sorted(own | gives):
        taken = "an input and an output" if name in own & gives else "a value between stages" if "/" in name else ""
        if taken or name.endswith((".kept", ".next")):
            raise ConfigError(
                f"{name!r} cannot be the name of an input or output of the feature",
                where=where,
                why=f"it is {taken or 'that of a state'}",
                remedy="give another name, without / and not ending in .kept or .next",
            )


MEANT = {
    "source": ("window", "hop", "rows", "fill", "divide", "add"),
    "state": ("first", "fill"),
    "tokens": ("begin",),
    "positions": (),
    "mask": (),
}
"""By what an input gets, the keys that say more of it."""
OF_WINDOWS, OF_LOOPS = ("hop", "rows", "fill"), ("first", "tokens", "positions", "mask")


def _refuse_feed(feed: configs.Feed, when: configs.When, where: str) -> None:
    kinds = [key for key in MEANT if getattr(feed, key) is not None]
    if len(kinds) != 1:
        raise ConfigError(
            "an input gets " + ("two things" if kinds else "nothing"),
            where=where,
            why="one of `from`, `state`, `tokens`, `positions` and `mask` says what it is",
            remedy="write one of them",
        )
    given = {
        field.name
        for field in msgspec.structs.fields(feed)
        if getattr(feed, field.name) != field.default and field.name != kinds[0]
    }
    if strange := sorted(given - {*MEANT[kinds[0]]}):
        raise ConfigError(
            f"`{strange[0]}` says nothing of this input",
            where=where,
            why=f"it gets `{'from' if kinds[0] == 'source' else kinds[0]}`",
            remedy="remove it",
        )
    if kinds[0] == "source" and not feed.window and (lacking := sorted(given & {*OF_WINDOWS})):
        raise ConfigError(
            f"`{lacking[0]}` without a window",
            where=where,
            why="a window is what moves on, has rows and is filled",
            remedy="give `window`, how many rows the model takes, or remove it",
        )
    if when is configs.When.INIT and (of_loop := sorted({*given, kinds[0]} & {*OF_LOOPS})):
        raise ConfigError(
            f"`{of_loop[0]}` of a stage that is no loop",
            where=where,
            why="only what runs at every step of a loop has tokens and first values",
            remedy='give the stage when = "step", or the input something else',
        )
    if feed.window and feed.hop and feed.hop > feed.window:
        raise ConfigError(
            f"a window of {feed.window} that moves on by {feed.hop} leaves out rows",
            where=where,
            why="what lies between two windows would reach no model",
            remedy="make `window` at least as large as `hop`",
        )


def refuse_members(feature: configs.FeatureConfig, members: Mapping[str, StageModel], where: str) -> None:
    """Raise ConfigError for inputs that a model does not have, and for models that one graph cannot have."""
    for stage in feature.flow:
        member, at = members[stage.run], f"{where}, stage {stage.run}"
        for name, feed in stage.feeds.items():
            if "%d" not in name and name not in member.inputs:
                raise ConfigError(
                    f"the model has no input {name!r}",
                    where=at,
                    why=f"it has {', '.join(map(str, member.inputs.values())) or 'none'}",
                    remedy="name one of them",
                )
            source = feed.source or ""
            before = flow_whole.stage_of(source, members)
            if before and source[len(before) + 1 :] not in members[before].outputs:
                raise ConfigError(
                    f"{before} does not give {source!r}",
                    where=f"{at}, {name}",
                    why=f"it gives {', '.join(f'{before}.{output}' for output in members[before].outputs)}",
                    remedy="name one of them",
                )
    _refuse_opsets(members, where)
    functions: dict[tuple[str, str], str] = {}
    for name, member in members.items():
        for function in member.proto.functions:
            owner = functions.setdefault((function.domain, function.name), name)
            if owner != name:
                raise ConfigError(
                    f"two models have a function {function.name!r}",
                    where=where,
                    why=f"{owner} and {name}",
                    remedy="export one of them without functions",
                )


def _refuse_opsets(members: Mapping[str, StageModel], where: str) -> None:
    owners: dict[str, str] = {}
    versions: dict[str, int] = {}
    for name, member in members.items():
        for opset in member.proto.opset_import:
            domain = onnx_edit.plain_domain(opset.domain)
            owner, version = owners.setdefault(domain, name), versions.setdefault(domain, opset.version)
            if version == opset.version:
                continue
            high = max(version, opset.version)
            lower = owner if version < high else name
            steps = f'transforms = [{{ do = "opset", options = {{ version = {high} }} }}]'
            raise ConfigError(
                f"the models have opsets {version} and {opset.version}" + (f" of {domain}" if domain else ""),
                where=where,
                why=f"{owner} has {version}, {name} {opset.version}, and one graph has one",
                remedy=f"export {lower} again with {high}" if domain else f"raise that of {lower}: {steps}",
            )
