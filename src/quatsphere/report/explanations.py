"""Explanations on the pages: words, and for every number, chart and table what it shows and what is normal.

Normal ranges are those of this repository's runs: rows full, attention and flat of results/lite and results/curve
(CIFAR-10), and, for measures that those cells do not contain, a diagnosis of the presets demo and lite, seed 42.
"""

from __future__ import annotations

from typing import NamedTuple


class Explanation(NamedTuple):
    """Title of a chart, what it shows, what is normal."""

    title: str
    shows: str
    normal: str


NORMAL_SOURCE = (
    "Normal is what this repository's own runs show: more than a hundred short runs on CIFAR-10, and the presets demo "
    "and lite."
)
INTRODUCTIONS = {
    "qsv": (
        "QSV samples an image onto nested spheres of vertices, the shells, and passes features inwards from shell to "
        "shell. At every vertex each head learns an orientation, a unit quaternion. The relative orientation of two "
        "vertices decides how much one counts for the other (routing) and how its message is rotated on the way "
        "(transport). The tokens of the last shell are pooled into one score per class."
    ),
    "attention": (
        "The attention baseline samples an image onto the same nested shells of vertices as QSV and passes features "
        "inwards between the same neighbours, with dot-product attention in place of quaternions. The tokens of the "
        "last shell are pooled into one score per class."
    ),
    "resnet20": "ResNet-20 is a convolutional network, here for comparison; it has no shells.",
    "linear": "Softmax regression on the image, the simplest classifier, here for comparison; it has no shells.",
}
"""Model -> what it does."""

SHELL_WORDS = (
    ("vertex, token", "A point on a shell, and the vector of features that it holds."),
    ("shell", "A sphere (or plane) of vertices. Shell 1, the outermost, samples the image; the last one is pooled."),
    ("step", "One exchange between neighbours: within shell 1, then from shell to shell, then rounds in the last."),
    ("head", "One of several exchanges that run side by side in a step, each with its own weights."),
    ("weight, 1/k", "Share of one neighbour in what a vertex receives; k neighbours with equal weights have 1/k each."),
    ("entropy", "Evenness of the weights, divided by log k: 1 means equal weights, 0 that one neighbour has all."),
    ("peak", "Largest weight of a vertex, times k: 1 means equal weights, k that one neighbour has all."),
)
QUATERNION_WORDS = (
    ("frame, field", "The orientation (unit quaternion) of a vertex in one head; the field is all of them."),
    ("Re r", "Alignment of the frames of two vertices, from -1 to 1; routing turns it into weights."),
    ("β", "Inverse temperature of the routing: weights are softmax(β Re r), so a larger β makes them less even."),
    ("bound ε", "Largest angle, in radians per axis, by which an image may turn the frames of a shell; it is learned."),
    ("transport", "Rotation of a message from the frame of its sender into the frame of its receiver."),
)


def words_of(model: str) -> tuple[tuple[str, str], ...]:
    """Return the words that the pages of a model use, with their meanings."""
    return {"qsv": SHELL_WORDS + QUATERNION_WORDS, "attention": SHELL_WORDS}.get(model, ())


TILES = {
    "test accuracy": "Share of test images classified correctly; guessing gives {chance:.2g}.",
    "validation accuracy": "The same on images held out of training, which chose the checkpoint. Normal: within a few "
    "points of the test accuracy.",
    "best validation accuracy": "Share of held-out images classified correctly, at the best epoch so far.",
    "parameters": "Numbers that training adjusts. The paper's QSV has about 640,000.",
    "epochs": "Passes over the training images.",
    "calibration error": "Mean gap between confidence and accuracy: 0 is perfect. Normal: 0.02 to 0.06 on CIFAR-10. "
    "The demo has 0.14: label smoothing keeps confidences below 1 although almost every prediction is right.",
}
"""Label of a headline number -> what it is, what is normal."""

RUN_PICTURES = {
    "classes": Explanation(
        "Accuracy by class", "Share of the test images of each class that are classified correctly, easiest first.",
        "unequal bars; with few images a class moves by several points from run to run.",
    ),
    "confusion": Explanation(
        "Confusion", "Number of test images by true class (rows) and predicted class (columns).",
        "a dark diagonal; the other counts show which classes are mistaken for each other.",
    ),
    "training": Explanation(
        "Loss and accuracy", "Training loss, and accuracy on training and validation images, by epoch.",
        "the loss falls and flattens. Training images are augmented and so harder: their accuracy may stay below "
        "the validation accuracy.",
    ),
    "inside": Explanation(
        "Internal measures", "Entropy, peak, β, bound ε and movement of the frames, on validation images, by epoch.",
        "QSV has nearly even weights, entropy 0.985 to 1 and peak 1.1 to 1.4; attention 0.48 to 0.96 and 1.8 to 7. "
        "β 0.45 to 0.8; bound 0.2 to 0.7 rad; frames that move less from epoch to epoch as the learning rate falls.",
    ),
    "temperature": Explanation(
        "Inverse temperature β", "β of the steps from shell to shell: mean (line) and range over heads (band). The "
        "dashed line, 0.79, is where β starts and where the penalties alone would hold it.",
        "a slow fall to 0.45 to 0.8.",
    ),
    "samples": Explanation(
        "Samples of the first shell", "A test image, the samples of every vertex of shell 1, and their mean colours on "
        "the shell.",
        "the picture is recognisable on the shell, and its far side, drawn small and pale, shows the image's edges.",
    ),
    "shells": Explanation(
        "Shells", "Length of the token at every vertex for the same image, outer shell first.",
        "bright and dark regions on every shell; one colour everywhere would mean that the image is not seen.",
    ),
    "routing": Explanation(
        "Routing weights", "Distribution of the weights of every step, as multiples of the uniform weight 1/k.",
        "in QSV narrow hills around 1 (dashed), entropy 0.985 to 1; in attention broad ones, entropy 0.48 to 0.96.",
    ),
    "transport": Explanation(
        "Transport switched off", "Rise of the negative log-likelihood when messages are not rotated at test time, by "
        "head and by step.",
        "the highest bar is all steps together (2 to 4 in lite and demo), then the first two steps; the last steps are "
        "near 0, and a bar slightly below 0 is noise.",
    ),
    "coverage": Explanation(
        "Vertices", "Positions of the vertices on an equal-area map of each shell, now and before training.",
        "even dots that moved by 1 to 8 degrees on average from the rings, their start; attention moves none.",
    ),
    "receptive": Explanation(
        "Receptive field", "Influence of each pixel on the score of the predicted class, mean 1.",
        "a patchy map, because each vertex samples the image at a few places: the demo has 0.6 to 1.7 times the mean, "
        "lite 0 to 4 times. A large dark region would not be seen by the model.",
    ),
    "cost": Explanation(
        "Cost", "Share of each part in the parameters and in the time of a forward pass.",
        "in QSV the perturbation networks hold more than half of the parameters, then ffn; in attention ffn leads. The "
        "time depends on size and machine.",
    ),
}  # fmt: skip
"""Figure -> explanation, in the order of the page."""

TABLES = {
    "accuracy": "Share of images classified correctly, without augmentation. Normal: within 3 points of each "
    "other after a few epochs; a gap that grows with longer training is what was memorised.",
    "by step": "Weights, angles between neighbouring frames (radians), spread of Re r, and β of every step. Normal for "
    "QSV: entropy 0.985 to 1, peak 1.1 to 1.4, angles 1.1 to 2, spreads 0.15 to 0.5, β 0.45 to 0.8; for attention "
    "entropy 0.48 to 0.96, peak 1.8 to 7.",
    "field by shell": "Bound ε and its use, similarity of the heads' frames (0.25: unrelated, 1: equal), rotation "
    "since the start and in the last epoch. Normal: similarity 0.55 to 0.65, drift 0.4 rad after the "
    "demo to 1.6 after long training.",
    "vertices by shell": "Distance between neighbouring vertices, density at the poles (1: even), energy (lower: more "
    "even), distance moved in training. Normal: moved by 1 to 8 degrees in QSV, 0 in attention; "
    "energy within 0.1 % of the start.",
    "over training": "Measures of every epoch, averaged over steps or shells. Normal: entropy and bound change little, "
    "β falls slowly.",
    "parts": "Parameters and time by part of the model. Normal: as in the chart of the cost.",
    "transport off at test time": "Change of accuracy and negative log-likelihood when messages are not rotated, "
    "without training again. Normal: without any transport accuracy falls by 0.27 (lite) to 0.8 (demo); "
    "single heads and the last steps cost less.",
}
"""First words of the title of a diagnostic table -> what it shows, what is normal."""


def table_text(title: str) -> str:
    """Return the explanation of a diagnostic table, or an empty string."""
    return next((text for start, text in TABLES.items() if title.startswith(start)), "")


VIEW_INTRODUCTIONS = {
    "qsv": "Each dot is a vertex of a shell and holds a token; move Step to follow the image from the outermost "
    "shell inwards. Lines lead from the selected vertex to the neighbours from which it receives, thicker for larger "
    "weights, and its three arrows are its frame in the chosen head. Click another vertex to select it, drag to turn "
    "the shells.",
    "attention": "Each dot is a vertex of a shell and holds a token; move Step to follow the image from the outermost "
    "shell inwards. Lines lead from the selected vertex to the neighbours from which it receives, thicker for larger "
    "weights. Click another vertex to select it, drag to turn the shells.",
}
"""Model -> three sentences above its view."""
VIEW_TIPS = {
    "score": "Alignment of the frames of the two vertices, from -1 to 1 (equal); routing turns it into the weight.",
    "weight": "Share of this neighbour in what the vertex receives; the weights of all neighbours sum to 1.",
    "uniform": "The weight if all k neighbours counted the same: 1/k.",
}
"""Tooltips of the view."""

LIVE_TITLES = {"drawing": "Draw a digit", "picture": "Show it a picture"}
"""Input -> title of the page that runs a model."""
LIVE_INTRODUCTION = (
    "A trained QSV runs inside this page: each stroke or picture is classified here, and nothing leaves this computer. "
    "The globe shows this image on its way through the shells; lines are routing weights, arrows the frame of the "
    "selected vertex. Switch routing or transport off to see what each contributes."
)
"""Three sentences above the page that runs a model."""

STUDY_INTRODUCTION = (
    "A study trains this model and variants of it that each change one thing, with several seeds, and compares them."
)
STUDY_TILES = {
    "runs": "One run is one model trained with one seed.",
    "rows": "Variants of the model; each changes one thing.",
    "training time": "Sum over all runs.",
    "claims: holds": "Statements of the paper that these runs support.",
    "claims: fails": "Statements that these runs contradict, at their length of training.",
    "claims: undecided": "Statements for which runs or seeds are missing. Normal for short studies.",
}
STUDY_PICTURES = {
    "ablation": Explanation(
        "Accuracies and changes",
        "Test accuracy of every row, and its change from the row it is compared with. Dots are seeds, lines 95 % "
        "intervals, diamonds the paper's values at full size.",
        "accuracies below the paper's after short training; compare the changes. A line across 0 is no clear effect.",
    ),
    "lengths": Explanation(
        "Contrasts against length",
        "Every contrast of docs/protocol.md by number of images seen; the diamond is the paper's value.",
        "wide intervals at first. A curve that bends towards the diamond speaks for the paper's value.",
    ),
    "temperature": Explanation(
        "Inverse temperature β",
        "β during training when it is learned, starts high or is frozen. The dashed line, 0.79, is where the penalties "
        "alone would hold it.",
        "a high start returns towards the dashed line.",
    ),
    "qsv": Explanation(
        "QSV in one view",
        "The shells, and the kernel with the change of accuracy, in points, when each of its roles is removed.",
        "transport costs more than routing, both together more than the sum.",
    ),
}
"""Figure -> explanation; figures of one data set have its name after a dash."""
