"""Approximate instructions of a Hopper GPU, and CUDA's expf, bit for bit.

The instructions are `ex2.approx.ftz.f32`, `lg2.approx.ftz.f32`, `rcp.approx.ftz.f32`,
`rsqrt.approx.f32` and `tanh.approx.f32`. Each is a quadratic interpolation in integers. The leading
6 or 7 fraction bits of the argument, for rsqrt with the parity of its exponent, choose three
coefficients c0, c1 and c2. With t the remaining fraction bits and s a fixed shift, the result is::

    c0 2^s + c1 t + c2 square(t) + bias, shifted right

square(t) is a product that leaves out the low bits of its partial products, and bias is not quite
one half. The special function unit of NVIDIA's first unified GPUs has this form, as the envytools
project (nvhw/sfu.c) found. The coefficients were derived from results on an H200, and so were two
other facts: the argument of ex2 is cut to a multiple of 2^-23, and negative fractions are
complemented bit by bit. For each of the first three the model was compared with an H200 on all 2^32
arguments (`python -m tests.checks.gpu_instructions`).

rsqrt was derived from 111,058 results of an H100: they leave one triple of coefficients in each
interval, and a bias of 0x7FFE or 0x7FFF. The model, with 0x7FFE, was then compared with an H100 on
all 2^32 arguments.

tanh differs in three ways: its intervals are chosen by the exponent and by up to 4 fraction bits,
of the other fraction bits only the leading 17 are read, and the bias is 0. Its coefficients were
derived from all results of an H100. The model was compared with them on all 2^32 arguments
(`python -m tests.checks.exhaustive_tanh`, which needs no GPU).
"""

import math
from functools import cache
from typing import Any

import numpy as np

from roundscope.emu.backends.ops import Array, Ops
from roundscope.emu.roundings.modes import BINARY32

EX2 = (
    (33554432, 22713, 494), (33919815, 22960, 501), (34289179, 23210, 506), (34662562, 23463, 511),
    (35040015, 23718, 518), (35421574, 23977, 521), (35807289, 24238, 527), (36197206, 24502, 532),
    (36591369, 24768, 541), (36989822, 25038, 546), (37392613, 25311, 551), (37799794, 25586, 559),
    (38211406, 25865, 564), (38627501, 26147, 568), (39048128, 26431, 577), (39473334, 26719, 583),
    (39903170, 27010, 589), (40337687, 27304, 596), (40776934, 27602, 600), (41220967, 27902, 609),
    (41669833, 28206, 615), (42123589, 28513, 622), (42582283, 28824, 627), (43045974, 29138, 633),
    (43514714, 29455, 641), (43988558, 29776, 647), (44467562, 30100, 655), (44951783, 30428, 661),
    (45441275, 30759, 670), (45936098, 31094, 677), (46436311, 31432, 686), (46941968, 31775, 691),
    (47453132, 32121, 699), (47969864, 32471, 705), (48492222, 32824, 715), (49020266, 33182, 721),
    (49554062, 33543, 730), (50093671, 33908, 739), (50639156, 34277, 748), (51190579, 34651, 753),
    (51748008, 35028, 763), (52311507, 35409, 773), (52881143, 35795, 779), (53456980, 36185, 787),
    (54039088, 36579, 796), (54627535, 36977, 806), (55222390, 37380, 813), (55823722, 37787, 822),
    (56431604, 38198, 833), (57046103, 38614, 842), (57667294, 39035, 849), (58295251, 39460, 858),
    (58930045, 39889, 870), (59571751, 40324, 877), (60220444, 40763, 887), (60876202, 41207, 896),
    (61539101, 41655, 909), (62209217, 42109, 917), (62886631, 42568, 925), (63571421, 43031, 938),
    (64263669, 43500, 946), (64963455, 43973, 959), (65670860, 44452, 969), (66385969, 44936, 980),
)  # fmt: skip
LG2 = (
    (4, 47272, -727), (1501079, 46545, -705), (2979245, 45840, -685), (4435175, 45156, -665),
    (5869538, 44492, -646), (7282959, 43847, -627), (8676041, 43221, -610),
    (10049360, 42612, -592), (11403480, 42020, -576), (12738914, 41444, -559),
    (14056181, 40884, -544), (15355766, 40339, -530), (16638137, 39809, -518),
    (17903740, 39292, -504), (19153020, 38788, -491), (20386385, 38297, -479),
    (21604230, 37818, -466), (22806952, 37351, -455), (23994914, 36896, -445),
    (25168473, 36451, -433), (26327980, 36018, -425), (27473760, 35594, -414),
    (28606142, 35180, -404), (29725435, 34776, -396), (30831935, 34380, -385),
    (31925930, 33994, -377), (33007703, 33616, -368), (34077522, 33247, -361),
    (35135647, 32886, -354), (36182338, 32532, -346), (37217831, 32186, -339),
    (38242363, 31847, -331), (39256170, 31516, -326), (40259469, 31191, -319),
    (41252482, 30872, -311), (42235412, 30561, -307), (43208461, 30255, -300),
    (44171827, 29955, -293), (45125706, 29662, -289), (46070272, 29374, -283),
    (47005713, 29091, -276), (47932206, 28814, -271), (48849917, 28542, -266),
    (49759005, 28276, -262), (50659642, 28014, -257), (51551982, 27757, -253),
    (52436166, 27505, -249), (53312349, 27257, -244), (54180673, 27013, -238),
    (55041280, 26774, -234), (55894305, 26540, -232), (56739875, 26309, -227),
    (57578131, 26082, -223), (58409188, 25859, -219), (59233176, 25640, -216),
    (60050206, 25424, -211), (60860396, 25213, -209), (61663866, 25004, -204),
    (62460727, 24799, -201), (63251077, 24598, -199), (64035034, 24399, -195),
    (64812688, 24204, -192), (65584146, 24012, -189), (66349505, 23823, -186),
)  # fmt: skip
RCP = (
    (67108862, -65534, 1013), (66588640, -64522, 989), (66076420, -63533, 966),
    (65572019, -62567, 945), (65075260, -61622, 923), (64585974, -60699, 902),
    (64103990, -59797, 883), (63629144, -58914, 863), (63161282, -58051, 845),
    (62700252, -57207, 827), (62245903, -56381, 809), (61798089, -55572, 791),
    (61356675, -54781, 774), (60921522, -54007, 758), (60492497, -53249, 742),
    (60069472, -52507, 727), (59652323, -51780, 711), (59240928, -51068, 696),
    (58835168, -50371, 682), (58434928, -49688, 669), (58040097, -49019, 656),
    (57650567, -48363, 642), (57266229, -47721, 631), (56886984, -47091, 618),
    (56512727, -46473, 605), (56143364, -45868, 594), (55778796, -45274, 582),
    (55418932, -44692, 572), (55063684, -44121, 561), (54712959, -43560, 549),
    (54366675, -43011, 540), (54024745, -42471, 529), (53687091, -41942, 519),
    (53353631, -41423, 510), (53024286, -40913, 501), (52698985, -40412, 490),
    (52377649, -39921, 482), (52060210, -39439, 474), (51746594, -38965, 465),
    (51436735, -38500, 457), (51130563, -38043, 449), (50828015, -37594, 441),
    (50529027, -37153, 433), (50233536, -36720, 426), (49941480, -36294, 418),
    (49652801, -35876, 412), (49367440, -35464, 403), (49085340, -35060, 397),
    (48806447, -34663, 390), (48530703, -34272, 383), (48258058, -33888, 377),
    (47988462, -33511, 371), (47721859, -33140, 366), (47458202, -32774, 358),
    (47197442, -32415, 353), (46939532, -32062, 348), (46684427, -31714, 341),
    (46432080, -31373, 337), (46182444, -31036, 331), (45935478, -30705, 326),
    (45691141, -30379, 320), (45449390, -30059, 316), (45210183, -29743, 310),
    (44973479, -29432, 305), (44739242, -29127, 302), (44507434, -28826, 297),
    (44278014, -28529, 291), (44050946, -28237, 287), (43826197, -27950, 283),
    (43603728, -27667, 279), (43383508, -27388, 274), (43165501, -27114, 271),
    (42949673, -26843, 266), (42735993, -26577, 263), (42524428, -26314, 258),
    (42314948, -26056, 256), (42107523, -25801, 251), (41902120, -25550, 248),
    (41698712, -25302, 243), (41497268, -25058, 240), (41297762, -24818, 237),
    (41100166, -24581, 233), (40904451, -24348, 231), (40710591, -24117, 226),
    (40518559, -23890, 223), (40328331, -23667, 222), (40139881, -23446, 218),
    (39953184, -23228, 214), (39768216, -23014, 212), (39584953, -22802, 208),
    (39403369, -22593, 205), (39223446, -22388, 204), (39045157, -22184, 199),
    (38868482, -21984, 197), (38693399, -21787, 196), (38519886, -21592, 193),
    (38347922, -21399, 189), (38177487, -21209, 186), (38008561, -21022, 184),
    (37841121, -20837, 182), (37675152, -20655, 180), (37510631, -20475, 178),
    (37347541, -20297, 175), (37185864, -20122, 173), (37025580, -19949, 171),
    (36866671, -19778, 169), (36709122, -19609, 166), (36552913, -19443, 165),
    (36398028, -19278, 161), (36244450, -19116, 160), (36092162, -18956, 159),
    (35941149, -18797, 155), (35791394, -18641, 154), (35642882, -18487, 153),
    (35495597, -18334, 150), (35349526, -18184, 149), (35204650, -18035, 147),
    (35060957, -17888, 145), (34918434, -17743, 143), (34777062, -17600, 143),
    (34636833, -17458, 140), (34497730, -17318, 138), (34359739, -17180, 137),
    (34222847, -17043, 135), (34087042, -16908, 133), (33952311, -16775, 132),
    (33818639, -16643, 131), (33686017, -16513, 130),
)  # fmt: skip
RSQRT = (  # of the arguments of [1, 2), then of [2, 4)
    (67108862, -131062, 1508), (66590638, -128048, 1450), (66084240, -125150, 1396),
    (65589220, -122358, 1344), (65105161, -119670, 1296), (64631662, -117078, 1250),
    (64168346, -114578, 1206), (63714854, -112166, 1164), (63270844, -109838, 1124),
    (62835987, -107588, 1086), (62409973, -105416, 1052), (61992512, -103314, 1016),
    (61583315, -101282, 984), (61182119, -99316, 952), (60788660, -97412, 922),
    (60402697, -95568, 892), (60023991, -93782, 866), (59652324, -92052, 840),
    (59287473, -90372, 814), (58929238, -88744, 790), (58577419, -87164, 766),
    (58231826, -85630, 744), (57892278, -84142, 724), (57558602, -82696, 704),
    (57230630, -81290, 684), (56908204, -79924, 664), (56591164, -78596, 646),
    (56279365, -77304, 628), (55972663, -76046, 610), (55670921, -74824, 596),
    (55374005, -73632, 580), (55081793, -72474, 566), (54794159, -71344, 550),
    (54510984, -70244, 536), (54232151, -69172, 524), (53957557, -68126, 510),
    (53687092, -67106, 496), (53420653, -66112, 484), (53158143, -65142, 472),
    (52899462, -64196, 462), (52644525, -63272, 450), (52393235, -62370, 440),
    (52145512, -61490, 430), (51901270, -60630, 420), (51660428, -59790, 410),
    (51422907, -58970, 402), (51188635, -58168, 392), (50957533, -57382, 382),
    (50729535, -56616, 374), (50504568, -55866, 366), (50282568, -55132, 358),
    (50063471, -54416, 352), (49847214, -53714, 344), (49633734, -53026, 336),
    (49422974, -52354, 330), (49214875, -51696, 324), (49009385, -51050, 316),
    (48806448, -50418, 308), (48606011, -49800, 302), (48408022, -49194, 296),
    (48212433, -48600, 290), (48019193, -48018, 286), (47828263, -47448, 280),
    (47639590, -46888, 274), (47453130, -92674, 1066), (47086691, -90544, 1026),
    (46728615, -88494, 986), (46378582, -86520, 950), (46036299, -84620, 918),
    (45701485, -82786, 884), (45373874, -81020, 854), (45053205, -79314, 824),
    (44739243, -77668, 796), (44431752, -76076, 768), (44130518, -74540, 742),
    (43835326, -73054, 718), (43545982, -71618, 696), (43262291, -70226, 672),
    (42984072, -68880, 652), (42711158, -67578, 632), (42443372, -66314, 612),
    (42180562, -65090, 594), (41922577, -63904, 576), (41669266, -62752, 558),
    (41420490, -61634, 542), (41176120, -60550, 526), (40936024, -59498, 512),
    (40700080, -58474, 496), (40468168, -57480, 482), (40240175, -56514, 470),
    (40015994, -55576, 458), (39795521, -54662, 444), (39578648, -53774, 434),
    (39365287, -52908, 420), (39155336, -52066, 410), (38948712, -51246, 398),
    (38745320, -50448, 390), (38545085, -49670, 380), (38347924, -48912, 370),
    (38153755, -48172, 360), (37962507, -47452, 352), (37774106, -46748, 342),
    (37588483, -46062, 334), (37405571, -45394, 326), (37225301, -44740, 318),
    (37047614, -44102, 310), (36872446, -43480, 304), (36699742, -42872, 296),
    (36529439, -42278, 290), (36361487, -41698, 284), (36195832, -41130, 276),
    (36032416, -40576, 272), (35871196, -40034, 266), (35712122, -39504, 260),
    (35555147, -38984, 252), (35400222, -38478, 248), (35247303, -37982, 244),
    (35096352, -37496, 238), (34947319, -37020, 234), (34800173, -36554, 228),
    (34654868, -36098, 224), (34511369, -35652, 220), (34369640, -35214, 214),
    (34229641, -34786, 210), (34091339, -34366, 206), (33954698, -33954, 202),
    (33819688, -33550, 198), (33686280, -33156, 194),
)  # fmt: skip
TANH = (
    (8388608, 2097152, -256), (8388480, 2097024, -768), (8387968, 2096768, -3328),
    (8385888, 1047616, -2624), (12573728, 1046304, -3520), (8377696, 1044672, -10176),
    (12546144, 1039616, -14208), (8345192, 516256, -8944), (10401240, 511776, -10816),
    (12437488, 506368, -12640), (14450304, 500048, -14256), (8218080, 493088, -33104),
    (10157208, 476480, -38592), (12024448, 457144, -42976), (13809984, 435608, -46304),
    (7753000, 412568, -98592), (9304656, 362992, -100608), (10656104, 312504, -96608),
    (11809672, 264088, -88688), (12777544, 219688, -78584), (13577912, 180408, -67824),
    (14231944, 146536, -57152), (14761140, 118004, -47384), (15185952, 94360, -38736),
    (15524804, 75040, -31376), (15793720, 59400, -25152), (16006268, 46864, -20072),
    (16173728, 36874, -15946), (16305345, 28942, -12590), (16408581, 22674, -9898),
    (16489421, 17746, -7784), (16552657, 13870, -6094), (16602069, 10835, -4776),
    (16640655, 8457, -3734), (16670765, 6599, -2920), (16694254, 5146, -2278),
    (16712570, 4012, -1778), (16726848, 3127, -1386), (16737977, 2437, -1082),
    (16746648, 1899, -842), (16753405, 1479, -654), (16758669, 1152, -508), (16762770, 897, -394),
    (16766000, 2636, -3504), (16773088, 972, -1296), (16775696, 356, -464), (16776656, 132, -176),
    (16777012, 48, -64), (16777140, 20, -32), (16777188, 8, -16), (16777204, 4, -8),
)  # fmt: skip
# of each binade from [2^-8, 2^-7) to [4, 8): its first interval of TANH, log2 of how many it has
TANH_BINADES = (
    (0, 0), (1, 0), (2, 0), (3, 1), (5, 1), (7, 2), (11, 2), (15, 2), (19, 3), (27, 4), (43, 3),
)  # fmt: skip


FRACTION = (1 << 23) - 1
LEAST = 2.0**-126  # smaller results and arguments are flushed to zero
BEYOND = 2.0**128


def ex2(ops: Ops, x: Array) -> Array:
    """Return 2^x as the instruction ex2 gives it, for a float64 array of binary32 numbers.

    The result is within 2 ulps of binary32 [PTX ISA, ex2], and exact for whole x. Results below
    2^-126 are 0.
    """
    xp = ops.xp
    size = xp.fmin(xp.abs(x), 256.0)  # a number for NaN too
    fixed = xp.floor(size * (FRACTION + 1.0)).astype(np.int64)
    whole = (fixed & FRACTION) == 0
    fixed = xp.where(x < 0.0, xp.where(whole, -fixed, -fixed - 1), fixed)
    total = interpolated(xp, EX2, (fixed >> 17) & 63, fixed & 0x1FFFF, 13, 0x77E2) >> 15
    y = _scaled(ops, total, (fixed >> 23) - 23)
    y = xp.where(y < LEAST, 0.0, xp.where(y >= BEYOND, math.inf, y))
    return xp.where(xp.isnan(x), math.nan, y)


def expf(ops: Ops, x: Array) -> Array:
    """Return e^x as CUDA's function expf gives it, for a float64 array of binary32 numbers.

    The result is within 2 ulps of binary32. A saturated multiply-add computes n = round(x log2 e),
    and two more multiply-adds compute r = x log2 e - n. The result is 2^r, given by `ex2`, times
    2^n. No other form was found that gives the softmax of PyTorch and XLA bit for bit.
    """
    xp = ops.xp
    z = xp.fmin(xp.fmax(x, -200.0), 200.0)
    t = fma(ops, z, float.fromhex("0x1.77313ap-8"), 0.5)
    n = xp.floor(xp.fmin(xp.fmax(t, 0.0), 1.0) * 252.0) - 126.0
    r = fma(ops, z, float.fromhex("0x1.715476p+0"), -n)
    r = fma(ops, z, float.fromhex("0x1.4ae0c0p-26"), r)
    y = ops.round(
        ops.multiply(ex2(ops, r), ops.from_bits((n.astype(np.int64) + 1023) << 52)), BINARY32, None
    )
    return xp.where(xp.isnan(x), math.nan, y)


def fma(ops: Ops, x: Array, y: Any, z: Any) -> Array:
    """Return x y + z, rounded once to binary32."""
    product = ops.multiply(x, y)
    return ops.round(ops.odd_sum(product, ops.xp.full_like(product, z)), BINARY32, None)


def lg2(ops: Ops, x: Array) -> Array:
    """Return log2(x) as the instruction lg2 gives it, for a float64 array of binary32 numbers.

    The result is -inf for magnitudes below 2^-126 and NaN for other negative numbers. At 2^-n its
    magnitude is a little smaller than n.
    """
    xp = ops.xp
    b = ops.bits(x)
    exponent = ((b >> 52) & 0x7FF) - 1023
    fraction = (b >> 29) & FRACTION
    t = fraction & 0x1FFFF
    total = interpolated(xp, LG2, fraction >> 17, t, 12, 0x3345, square(t) << 1) >> 2
    total = xp.where((fraction == 0) & (exponent == 0), 0, total) + (exponent << 36)
    size = _cut(ops, xp.where(total < 0, ~total, total).astype(np.float64) * 2.0**-36)
    y = xp.where(total < 0, -size, size)
    y = xp.where(x < LEAST, -math.inf, xp.where(x == math.inf, math.inf, y))
    return xp.where((x <= -LEAST) | xp.isnan(x), math.nan, y)


def rcp(ops: Ops, x: Array) -> Array:
    """Return 1 / x as the instruction rcp gives it, for a float64 array of binary32 numbers.

    The result is within 1 ulp of binary32, and infinite for magnitudes below 2^-126.
    """
    xp = ops.xp
    b = ops.bits(x)
    exponent = ((b >> 52) & 0x7FF) - 1023
    fraction = (b >> 29) & FRACTION
    t = fraction & 0xFFFF
    total = interpolated(xp, RCP, fraction >> 16, t, 13, 0x47E7, square(t << 1)) >> 15
    size = _scaled(ops, xp.where(fraction == 0, 1 << 24, total), -exponent - 24)
    size = xp.where(size < LEAST, 0.0, size)
    size = xp.where(xp.abs(x) < LEAST, math.inf, xp.where(xp.abs(x) == math.inf, 0.0, size))
    return xp.where(xp.isnan(x), math.nan, xp.where(b < 0, -size, size))


def rsqrt(ops: Ops, x: Array) -> Array:
    """Return 1 / sqrt(x) as the instruction rsqrt gives it, for a float64 array of binary32
    numbers.

    The result is within 1 ulp of binary32. Subnormal numbers are not flushed. 1 / sqrt(4^k) is
    taken to be exact, as 1 / 2^k is in rcp.
    """
    xp = ops.xp
    b = ops.bits(x)
    exponent = ((b >> 52) & 0x7FF) - 1023
    fraction, odd = (b >> 29) & FRACTION, exponent & 1
    t = fraction & 0x1FFFF
    interval = (odd << 6) | (fraction >> 17)
    total = interpolated(xp, RSQRT, interval, t, 15, 0x7FFE, square(t) << 2) >> 17
    total = xp.where((fraction == 0) & (odd == 0), 1 << 24, total)
    y = _scaled(ops, total, -24 - ((exponent - odd) >> 1))
    y = xp.where(x == 0.0, xp.copysign(math.inf, x), xp.where(x == math.inf, 0.0, y))
    return xp.where((x < 0.0) | xp.isnan(x), math.nan, y)


def tanh_approx(ops: Ops, x: Array) -> Array:
    """Return tanh x as the instruction tanh gives it, for a float64 array of binary32 numbers.

    The relative error is below 2^-16; 2^-11 is documented [PTX ISA, tanh]. The magnitude is that of
    x below 2^-8 and 1 from 8 on. Subnormal numbers are not flushed.
    """
    xp = ops.xp
    b, size = ops.bits(x), xp.abs(x)
    exponent = xp.clip(((b >> 52) & 0x7FF) - 1023, -8, 2)
    fraction = (b >> 29) & FRACTION
    first, log = (xp.asarray(column)[exponent + 8] for column in _columns(TANH_BINADES))
    interval, t = first + (fraction >> (23 - log)), (fraction >> (6 - log)) & 0x1FFFF
    total = interpolated(xp, TANH, interval, t, 15, 0)
    y = _cut(ops, _scaled(ops, total, xp.minimum(exponent, -1) - 38))
    y = xp.where(size < 2.0**-8, size, xp.where(size >= 8.0, 1.0, y))
    return xp.where(xp.isnan(x), math.nan, xp.where(b < 0, -y, y))


def interpolated(
    xp: Any,
    table: tuple[Any, ...],
    interval: Array,
    t: Array,
    shift: int,
    bias: int,
    squared: Array | None = None,
) -> Array:
    """Return c0 2^shift + c1 t + c2 square(t) + bias, where c0, c1, c2 are those of an interval."""
    c0, c1, c2 = (xp.asarray(column)[interval] for column in _columns(table))
    return (c0 << shift) + c1 * t + c2 * (square(t) if squared is None else squared) + bias


@cache
def _columns(table: tuple[Any, ...]) -> tuple[np.ndarray, ...]:
    return tuple(np.array(column, np.int64) for column in zip(*table, strict=True))


def square(t: Array) -> Array:
    """Return about t^2 2^-19 for 17-bit integers t.

    The partial product of each bit is cut at 2^18 before the partial products are added.
    """
    total = 0
    for bit in range(1, 17):
        total = total + (((t >> bit) & 1) * (t >> (18 - bit)))
    return total >> 1


def _scaled(ops: Ops, total: Array, exponent: Array) -> Array:
    """Return total 2^exponent, exactly, for positive integers `total` of up to 53 bits."""
    return total.astype(np.float64) * ops.from_bits((exponent + 1023) << 52)


def _cut(ops: Ops, y: Array) -> Array:
    """Return float64 numbers cut to 24 significand bits."""
    return ops.from_bits(ops.bits(y) & ~np.int64((1 << 29) - 1))
