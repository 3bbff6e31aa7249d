//go:build !purego

#include "textflag.h"

// func putBlock(dst *[16]byte, lo, hi uint64)
TEXT ·putBlock(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), AX
	MOVQ lo+8(FP), X0
	MOVQ hi+16(FP), X1
	PUNPCKLQDQ X1, X0
	MOVOU X0, (AX)
	RET
