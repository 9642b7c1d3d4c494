"""Java classes beside the native library that has their functions: class files, dex files, and what fits."""

import struct

import pytest

from pipeline.library.dex import read_dex
from pipeline.library.java_class import Budget, JavaClass, JavaMember, NotJava, read_class, read_jar
from pipeline.library.jni import PACKAGE, JniLibrary, function_of, misfit, read_jni
from tests.library.java_files import Methods, class_file, dex_file, jar

TENSOR, INFO = f"{PACKAGE}/OnnxTensor", f"{PACKAGE}/TensorInfo"
CLASSES: dict[str, Methods] = {
    TENSOR: [("<init>", f"(JL{INFO};)V", False), ("getArray", "(J)V", True), ("close", "(J)V", True)],
    INFO: [("<init>", "([J)V", False)],
}
TEXTS = f"x\0(JL{INFO};)V\0([J)V\0{INFO}\0{TENSOR}\0<init>\0".encode()
FUNCTIONS = tuple(function_of(TENSOR, name) for name in ("getArray", "close"))


def java(classes: dict[str, Methods]) -> list[JavaClass]:
    return [JavaClass(name, False, tuple(JavaMember(*row) for row in rows)) for name, rows in classes.items()]


def jni(texts: bytes = TEXTS, functions: tuple[str, ...] = FUNCTIONS) -> JniLibrary:
    found = read_jni(texts, functions)
    assert found
    return found


def test_what_belongs_together_fits() -> None:
    assert misfit(java(CLASSES), [jni()]) is None
    assert misfit(java(CLASSES), []) is None
    assert read_jni(TEXTS, {"OrtGetApiBase"}) is None


def test_a_native_method_without_a_function_does_not_fit() -> None:
    lacking = misfit(java(CLASSES), [jni(functions=FUNCTIONS[1:])])
    assert lacking
    assert lacking.unlinked == ("ai.onnxruntime.OnnxTensor.getArray",)
    assert (lacking.absent, lacking.unmade) == ((), ())
    assert misfit(java(CLASSES), [jni(functions=FUNCTIONS[1:]), jni(functions=FUNCTIONS[:1])]) is None


def test_a_class_of_which_no_function_is_there_may_be_unused() -> None:
    unused: dict[str, Methods] = {**CLASSES, f"{PACKAGE}/OrtxLibrary": [("register", "()V", True)]}
    assert misfit(java(unused), [jni()]) is None


def test_what_native_code_looks_up_is_there_under_its_name_and_with_its_constructor() -> None:
    renamed = misfit(java({TENSOR: CLASSES[TENSOR]}), [jni()])
    assert renamed
    assert renamed.absent == ("ai.onnxruntime.TensorInfo",)
    bare = misfit(java({**CLASSES, INFO: []}), [jni()])
    assert bare
    assert bare.unmade == ("ai.onnxruntime.TensorInfo",)
    changed = misfit(java({**CLASSES, TENSOR: [("<init>", "([J)V", False), *CLASSES[TENSOR][1:]]}), [jni()])
    assert changed
    assert changed.unmade == ("(JLai.onnxruntime.TensorInfo;)V",)


def test_an_abstract_class_and_one_that_is_thrown_need_no_constructor_of_the_library() -> None:
    texts = TEXTS + f"{PACKAGE}/OnnxValue\0{PACKAGE}/OrtException\0".encode()
    more = [
        JavaClass(f"{PACKAGE}/OnnxValue", True, ()),
        JavaClass(f"{PACKAGE}/OrtException", False, (JavaMember("<init>", "(Ljava/lang/String;)V"),)),
    ]
    assert misfit([*java(CLASSES), *more], [jni(texts)]) is None


@pytest.mark.parametrize(
    ("name", "method", "function"),
    [
        ("a/B$C", "d", "Java_a_B_00024C_d"),
        ("a_b/C", "_d", "Java_a_1b_C__1d"),
        ("a/B", "\xe4", "Java_a_B__000e4"),
    ],
)
def test_names_of_functions_are_escaped_as_jni_does(name: str, method: str, function: str) -> None:
    assert function_of(name, method) == function


def test_overloads_and_inner_classes_are_told_apart() -> None:
    """A function's name may end with the types that it takes, and inner classes begin with the name of the outer."""
    session = f"{PACKAGE}/OrtSession"
    library = jni(
        functions=(f"{function_of(session, 'run')}__J_3Ljava_lang_String_2", function_of(f"{session}$Result", "a_b"))
    )
    assert library.functions == {function_of(session, "run"), function_of(f"{session}$Result", "a_b")}
    assert library.classes == {function_of(session), function_of(f"{session}$Result")}
    assert library.packages == {function_of(PACKAGE)}


def test_dex_and_class_files_say_the_same() -> None:
    """Those of other Java packages, before and behind, are passed over in a dex."""
    others: dict[str, Methods] = {"a/B": [("x", "()V", True)], "zz/Z": [("x", "(I)V", False)]}
    compiled = sorted(read_jar(jar({**others, **CLASSES}), PACKAGE), key=lambda row: row.name)
    dexed = list(read_dex(dex_file({**others, **CLASSES}), PACKAGE, Budget()))
    assert [row.name for row in dexed] == [TENSOR, INFO] == [row.name for row in compiled]
    assert [set(row.methods) for row in dexed] == [set(row.methods) for row in compiled]
    assert [len(row.natives) for row in dexed] == [2, 0]


def test_a_dex_may_be_padded() -> None:
    content = dex_file(CLASSES)
    assert list(read_dex(content + bytes(9), PACKAGE, Budget())) == list(read_dex(content, PACKAGE, Budget()))


@pytest.mark.parametrize("kind", ["class", "dex", "jar"])
def test_java_that_is_cut_or_damaged_anywhere_is_refused_or_read(kind: str) -> None:
    whole = {"class": class_file(TENSOR, CLASSES[TENSOR]), "dex": dex_file(CLASSES), "jar": jar(CLASSES)}[kind]

    def read(content: bytes) -> list[JavaClass]:
        if kind == "jar":
            return list(read_jar(content, PACKAGE))
        if kind == "dex":
            return list(read_dex(content, PACKAGE, Budget()))
        return [read_class(content, Budget())]

    refused = 0
    for place in range(0, len(whole), 3):
        for changed in (whole[:place], whole[:place] + b"\xff\xff\xff\x7f" + whole[place + 4 :]):
            try:
                read(changed)
            except NotJava:
                refused += 1
    assert refused > len(whole) / 3


def test_classes_without_end_are_one_error() -> None:
    """Names that all lie in one long text, and a class that a dex has for each of 65,536 types."""
    with pytest.raises(NotJava, match="more of its classes than any release has"):
        read_class(class_file(TENSOR, CLASSES[TENSOR]), Budget(100))
    many = bytearray(dex_file(CLASSES))
    with pytest.raises(NotJava, match="more of its classes than any release has"):
        list(read_dex(bytes(many), PACKAGE, Budget(300)))
    struct.pack_into("<I", many, 56 + 8 * 5, 1 << 31)  # how many classes it defines
    with pytest.raises(NotJava, match="longer than the file"):
        list(read_dex(bytes(many), PACKAGE, Budget()))
