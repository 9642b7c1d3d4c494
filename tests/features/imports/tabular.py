"""Estimators as users' functions give them, in a line each: `ort-mobile import tabular:NAME`."""

from collections.abc import Callable
from typing import Any

import numpy as np


def flowers(kind: Any = np.float32) -> tuple[Any, Any]:
    from sklearn.datasets import load_iris

    data = load_iris()
    return data.data.astype(kind), data.target


def fitted(estimator: Any, kind: Any = np.float32, target: Callable[[Any, Any], Any] = lambda _x, y: y) -> Any:
    """An estimator fitted on flowers, of every ninth of which it is asked."""
    x, y = flowers(kind)
    return estimator.fit(x, target(x, y)), x[::9]


def regressor() -> Any:
    from sklearn.svm import SVR

    return fitted(SVR(), target=lambda x, y: y + x[:, 0])


def doubles() -> Any:
    from sklearn.cluster import KMeans

    return fitted(KMeans(3, n_init=1, random_state=0), np.float64)


def outliers() -> Any:
    from sklearn.ensemble import IsolationForest

    return fitted(IsolationForest(n_estimators=5, random_state=0))


def histograms() -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier

    return fitted(HistGradientBoostingClassifier(max_iter=5))


def zipmap() -> Any:
    from sklearn.linear_model import LogisticRegression

    model, x = fitted(LogisticRegression(max_iter=500))
    return model, x, {"options": {id(model): {"zipmap": True}}, "target_opset": 15}


def votes() -> Any:
    """50 trees, of which 25 may vote for one class and 25 for the other."""
    from sklearn.datasets import load_breast_cancer
    from sklearn.ensemble import RandomForestClassifier

    x, y = load_breast_cancer(return_X_y=True)
    x = x.astype(np.float32)
    return RandomForestClassifier(50, random_state=0).fit(x, y), x[:8]


TEXTS = np.array(["good film", "bad film", "great plot", "awful plot", "good plot"])


def texts(given: Any = TEXTS) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    steps = make_pipeline(TfidfVectorizer(lowercase=False), LogisticRegression())
    return steps.fit(TEXTS, ["p", "n", "p", "n", "p"]), given


def column_of_texts() -> Any:
    return texts(TEXTS.reshape(-1, 1).astype(object))


def categories() -> Any:
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    x = np.array([["a", "x"], ["b", "y"], ["c", "x"], ["a", "y"]])
    return make_pipeline(OneHotEncoder(), Ridge()).fit(x, [1.0, 2.0, 3.0, 4.0]), x


def frame() -> Any:
    import pandas as pd
    from sklearn.compose import make_column_transformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    table = pd.DataFrame({"age": [20.0, 30, 40, 50, 60, 25], "city": list("abacbc")})
    columns = make_column_transformer((StandardScaler(), ["age"]), (OneHotEncoder(), ["city"]))
    return make_pipeline(columns, LogisticRegression()).fit(table, [0, 1, 0, 1, 1, 0]), table


def lightgbm_classifier() -> Any:
    import lightgbm

    return fitted(lightgbm.LGBMClassifier(n_estimators=9, verbose=-1), target=lambda _x, y: np.array(list("stu"))[y])


def xgboost_in_a_pipeline() -> Any:
    import xgboost
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return fitted(make_pipeline(StandardScaler(), xgboost.XGBRegressor(n_estimators=9)), np.float64)


def unknown_argument() -> Any:
    from sklearn.linear_model import Ridge

    return (*fitted(Ridge()), {"dynamic_axes": {"X": {0: "batch"}}})


def doubles_of_trees() -> Any:
    from skl2onnx.common.data_types import DoubleTensorType
    from sklearn.tree import DecisionTreeClassifier

    return (*fitted(DecisionTreeClassifier(), np.float64), {"initial_types": [("X", DoubleTensorType([None, 4]))]})
