"""Noble, Bellet, Dieuleveut (2022), §5 and Appendix D: local steps on users that differ.

Its parts are *rounds*: how many rounds T the paper's accounting allows for each σ_g and K (Tables 1
and 4), and what the same rounds cost towards the server; *reduced* and *full*: DP-SCAFFOLD against
DP-FedAvg on synthetic records (`synthetic.py`), at ε = 3 towards the server and everybody else.

The paper's ε = 3 is that of a third party, who sees the models only and whom the drawing of users
helps to keep in the dark; with `NobleNoise.PRINTED` its σ_g is used, to compare with Tables 1 and
4.  Its step sizes were searched for on the data and are not printed.  Here a step follows from
public numbers, the radius among them; every algorithm has a few radii to choose from in each cell.
"""
