"""Test vectors of the tree and of the divisor, as plain data: docs/adr/0002 quotes them, and must not change alone.

Numbers are hexadecimal floats, which lose nothing; None is a shard that is absent. The leaves were drawn so that
another order of adding gives other bits wherever another order exists.
"""

SHAPES = (
    (1, "0"),
    (2, "(0 1)"),
    (3, "((0 1) 2)"),
    (4, "((0 1) (2 3))"),
    (5, "(((0 1) (2 3)) 4)"),
    (6, "(((0 1) (2 3)) (4 5))"),
    (7, "(((0 1) (2 3)) ((4 5) 6))"),
    (8, "(((0 1) (2 3)) ((4 5) (6 7)))"),
)
"""Shards, and how their leaves are added."""

# dtype, one value per shard, the root of the tree
TREE = (
    ("float32", ("0x1.d2faa6p+3",), "0x1.d2faa6p+3"),
    ("float32", ("-0x1.c61766p-3", "-0x1.1c8de6p-3"), "-0x1.7152a6p-2"),
    ("float32", ("0x1.e3443cp+1", "0x1.6a539p-1", "0x1.b1f282p-1"), "0x1.552aep+2"),
    ("float32", ("-0x1.1f96e8p-4", "0x1.a1893ep+0", "0x1.913142p+1", "-0x1.579058p-2"), "0x1.17039p+2"),
    (
        "float32",
        ("-0x1.8603c4p+2", "0x1.a64f3ap+0", "0x1.fd732ap-2", "0x1.3618cp+0", "-0x1.7e470cp+0"),
        "-0x1.0ea458p+2",
    ),
    (
        "float32",
        ("0x1.75b54ap-1", "0x1.2a94e2p+1", "0x1.ad0d72p-2", "0x1.79faecp-2", "0x1.ad1896p-7", "-0x1.6541fep+0"),
        "0x1.3bef5ap+1",
    ),
    (
        "float32",
        ("0x1.c4a67cp-3", "0x1.85eda8p-2", None, "0x1.7b842ap-4", "-0x1.94768cp-2", "0x1.5cc95p+2"),
        "0x1.6ff408p+2",
    ),
    (
        "float32",
        (
            "0x1.4d3412p+3",
            "-0x1.8df064p-3",
            "0x1.192e06p-1",
            "-0x1.2ac154p+1",
            "0x1.d120cp-5",
            "-0x1.b9a1cep-2",
            "-0x1.8dad84p+1",
        ),
        "0x1.3cef1cp+2",
    ),
    (
        "float32",
        (None, None, "0x1.25147cp-2", "0x1.ba36b8p-3", "0x1.03aa9cp+0", "0x1.8cff0cp-1", None, "0x1.dd5a96p-3"),
        "0x1.4330b4p+1",
    ),
    (
        "float32",
        (
            "0x1.20c034p-3",
            "0x1.8a8d6cp-4",
            "0x1.e412cap-2",
            "0x1.1bdd72p+2",
            "0x1.a57c56p-2",
            "-0x1.23aaaep-1",
            "-0x1.6f2368p-1",
            "-0x1.d934aep+0",
        ),
        "0x1.35ff5cp+1",
    ),
    (
        "float64",
        (
            "0x1.76928cbd20abcp+2",
            "0x1.d19c0cdd2c454p+3",
            "-0x1.4bea5822c9d68p-2",
            "0x1.5811d8571190ep-1",
            "-0x1.af6c998968238p-4",
            "-0x1.6f58b674820cp-6",
        ),
        "0x1.49f84c38e52a2p+4",
    ),
    ("bfloat16", ("0x1.2ep-2", "0x1.dap-1", "0x1.b4p+1", "-0x1.acp+3", "0x1.68p-2", "0x1.0ep-5"), "-0x1.0cp+3"),
    ("float16", ("0x1.334p+2", "-0x1.9f4p+0", "0x1.c5cp+2", "0x1.1bcp-2", "0x1.9fp-3"), "0x1.58p+3"),
    # Absent is the identity, not zero: -0.0 + 0.0 would lose its sign, and inf + -inf is no number at all.
    ("float32", ("-0x0p+0", None, "-0x0p+0"), "-0x0p+0"),
    ("float32", ("-0x0p+0", "0x0p+0", None), "0x0p+0"),
    ("float32", (None, "-0x0p+0", None, None), "-0x0p+0"),
    ("float32", (None, "inf", "0x1p+0"), "inf"),
    ("float32", ("inf", "-inf", "0x1p+0"), "nan"),
    # What overflows in this order would not in another.
    ("float32", ("0x1.8p+127", "0x1.8p+127", "-0x1.8p+127", "-0x1.8p+127"), "nan"),
    ("float32", ("0x1.8p+127", "-0x1.8p+127", "0x1.8p+127", "-0x1.8p+127"), "0x0p+0"),
    ("float32", (None, None), None),
)

# dtype, one weight per shard (float64), their sum in the tree, the root that is divided, the mean
DIVISOR = (
    ("float32", ("0x1p+3",), "0x1p+3", "0x1.15c1p+1", "0x1.15c1p-2"),
    ("float32", ("0x1.8p+1", "0x1.8p+1", "0x1p+1", "0x1p+1"), "0x1.4p+3", "0x1.562a7p+1", "0x1.11bb8cp-2"),
    ("float32", ("0x1.cp+2", "0x1.cp+2", None, "0x1.8p+2"), "0x1.4p+4", "0x1.e1d00cp+1", "0x1.81733cp-3"),
    (
        "float32",
        ("0x1.199999999999ap+0", "0x1.999999999999ap-3", "0x1.5555555555555p-2", "0x1.4p+1", "0x1.6666666666666p-1"),
        "0x1.3555555555556p+2",
        "0x1.bc882cp+0",
        "0x1.6fe374p-2",
    ),
    (
        "float64",
        ("0x1.199999999999ap+0", "0x1.999999999999ap-3", "0x1.5555555555555p-2", "0x1.4p+1", "0x1.6666666666666p-1"),
        "0x1.3555555555556p+2",
        "0x1.8bda0769e3465p+0",
        "0x1.4799f47af10e0p-2",
    ),
    ("float32", ("0x1.000001p+24", "0x1p+1"), "0x1.000003p+24", "0x1.bc882cp+0", "0x1.bc8826p-24"),
    ("bfloat16", ("0x1.8p+1", "0x1.8p+1", "0x1p+0"), "0x1.cp+2", "0x1.6ap+1", "0x1.9ep-2"),
    ("float16", ("0x1.8p+1", "0x1p+1", "0x1p+1"), "0x1.cp+2", "0x1.878p+0", "0x1.bf8p-3"),
)
