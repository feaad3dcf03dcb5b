"""Names, sizes and hashes of the official CIFAR files, checked against independent public sources (see each table).

Krizhevsky, "Learning multiple layers of features from tiny images", 2009; https://www.cs.toronto.edu/~kriz/cifar.html
"""

from __future__ import annotations

from dataclasses import dataclass

OFFICIAL_SITE = "https://www.cs.toronto.edu/~kriz/"
MIRROR = "https://dataset.bj.bcebos.com/cifar/"
"""Baidu's copy of the python archives, the default source of paddle.vision.datasets with the official md5."""


@dataclass(frozen=True)
class Archive:
    """A file to download; md5 as the official page prints it, sha256 as Keras and TensorFlow datasets pin it."""

    name: str
    size: int
    md5: str
    sha256: str
    mirrored: bool


@dataclass(frozen=True)
class BatchFile:
    """One file of a container; `size` is None where it could not be confirmed."""

    name: str
    test: bool
    rows: int
    size: int | None
    sha256: str


@dataclass(frozen=True)
class Container:
    """One of the two official forms, such as `cifar-10-batches-bin`."""

    folder: str
    files: tuple[BatchFile, ...]
    pickled: bool


@dataclass(frozen=True)
class Cifar:
    """A data set in its official forms; `fingerprint` is None where the whole set was never available to compute it."""

    name: str
    title: str
    classes: tuple[str, ...]
    label_bytes: int
    label_key: str
    containers: tuple[Container, ...]
    archives: tuple[Archive, ...]
    fingerprint: str | None
    jpeg_means: tuple[float, float, float] | None = None

    @property
    def counts(self) -> tuple[int, int]:
        """Numbers of training and test images."""
        files = self.containers[0].files
        return sum(f.rows for f in files if not f.test), sum(f.rows for f in files if f.test)


def _ten_batches(suffix: str, table: str) -> tuple[BatchFile, ...]:
    rows = [line.split() for line in table.strip().splitlines()]
    return tuple(BatchFile(name + suffix, name == "test_batch", 10_000, int(size), sha) for name, size, sha in rows)


# Hashes: the torchvision port for Ruby; test_batch.bin confirmed by a second project. Sizes follow from the format.
_TEN_BINARY = _ten_batches(
    ".bin",
    """
    data_batch_1 30730000 cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5
    data_batch_2 30730000 a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed
    data_batch_3 30730000 bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67
    data_batch_4 30730000 014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48
    data_batch_5 30730000 755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add
    test_batch   30730000 8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b
    """,
)
# Hashes: eight public projects agree, two of them beside torchvision's md5. Sizes: listings of the unpacked archive.
_TEN_PYTHON = _ten_batches(
    "",
    """
    data_batch_1 31035704 54636561a3ce25bd3e19253c6b0d8538147b0ae398331ac4a2d86c6d987368cd
    data_batch_2 31035320 766b2cef9fbc745cf056b3152224f7cf77163b330ea9a15f9392beb8b89bc5a8
    data_batch_3 31035999 0f00d98ebfb30b3ec0ad19f9756dc2630b89003e10525f5e148445e82aa6a1f9
    data_batch_4 31035696 3f7bb240661948b8f4d53e36ec720d8306f5668bd0071dcb4e6c947f78e9682b
    data_batch_5 31035623 d91802434d8376bbaeeadf58a737e3a1b12ac839077e931237e0dcd43adcb154
    test_batch   31035526 f53d8d457504f7cff4ea9e021afcf0e0ad8e24a91f3fc42091b8adef61157831
    """,
)
# Hashes: the torchvision port for Ruby, one source only. A wrong one would refuse good files, never admit bad ones.
_HUNDRED_BINARY = (
    BatchFile(
        "train.bin", False, 50_000, 153_700_000, "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29"
    ),
    BatchFile("test.bin", True, 10_000, 30_740_000, "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a"),
)
# Hashes: five public projects agree.
_HUNDRED_PYTHON = (
    BatchFile("train", False, 50_000, 155_249_918, "735e79b04f092ca3d2e6d07f368c0a7d70d48c48d28865950cc24454cf45129b"),
    BatchFile("test", True, 10_000, None, "4b67687d9933c4db8f0831104447f15b93774f4f464bd0516f0f0f2ac83b7864"),
)

CIFAR10 = Cifar(
    name="cifar10",
    title="CIFAR-10",
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    label_bytes=1,
    label_key="labels",
    containers=(
        Container("cifar-10-batches-bin", _TEN_BINARY, pickled=False),
        Container("cifar-10-batches-py", _TEN_PYTHON, pickled=True),
    ),
    archives=(
        Archive("cifar-10-binary.tar.gz", 170_052_171, "c32a1d4ab5d03f1284b67883e8d87530",
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd", mirrored=False),
        Archive("cifar-10-python.tar.gz", 170_498_071, "c58f30108f718f92721af3b95e74349a",
            "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce", mirrored=True),
    ),
    fingerprint="0c4da55a97aeee5dd5cd232f4026ba329a372db27aba47f01092a346454f0d62",
    jpeg_means=(125.2688, 122.9330, 113.8628),
)  # fmt: skip

_FINE_CLASSES = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
    castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
    elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster
    man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck
    pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
    skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger
    tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""

CIFAR100 = Cifar(
    name="cifar100",
    title="CIFAR-100",
    classes=tuple(_FINE_CLASSES.split()),
    label_bytes=2,
    label_key="fine_labels",
    containers=(
        Container("cifar-100-binary", _HUNDRED_BINARY, pickled=False),
        Container("cifar-100-python", _HUNDRED_PYTHON, pickled=True),
    ),
    archives=(
        Archive("cifar-100-binary.tar.gz", 168_513_733, "03b5dce01913d631647c71ecec9e9cb8",
            "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec", mirrored=False),
        Archive("cifar-100-python.tar.gz", 169_001_437, "eb9058c3a382ffc7106e4002c42a8d85",
            "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7", mirrored=True),
    ),
    fingerprint=None,
)  # fmt: skip

CIFARS = {cifar.name: cifar for cifar in (CIFAR10, CIFAR100)}
