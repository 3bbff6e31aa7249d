package zkstore

import (
	"encoding/binary"
	"testing"
)

// packet is an answer of the server: its head, and so many bytes after it.
func packet(zxid int64, rest int) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(16+rest))
	b = binary.BigEndian.AppendUint32(b, 7) // of the request
	b = binary.BigEndian.AppendUint64(b, uint64(zxid))
	b = binary.BigEndian.AppendUint32(b, 0) // no error
	return append(b, make([]byte, rest)...)
}

// The epoch is that of the latest transaction, however the answers are cut in pieces.
func TestAnswers(t *testing.T) {
	begin := packet(0x7fff_0000_0000, 40) // opens the session, and has no transaction
	var all []byte
	for _, p := range [][]byte{begin, packet(3<<32|9, 0), packet(-1, 30), packet(4<<32|1, 1000), packet(3<<32|10, 5)} {
		all = append(all, p...)
	}
	for size := 1; size <= len(all); size++ {
		var a answers
		for rest := all; len(rest) > 0; rest = rest[min(size, len(rest)):] {
			a.read(rest[:min(size, len(rest))])
		}
		if epoch, known := a.epoch(); epoch != 4 || !known {
			t.Fatalf("in pieces of %d: epoch %d, %v; want 4", size, epoch, known)
		}
	}
	var a answers
	a.read(begin)
	if epoch, known := a.epoch(); known {
		t.Errorf("before the first transaction: epoch %d", epoch)
	}
	a.read(packet(5, 0)) // of a server that stands alone
	if epoch, known := a.epoch(); epoch != 0 || !known {
		t.Errorf("epoch %d, %v; want 0", epoch, known)
	}
	a.read(binary.BigEndian.AppendUint32(nil, 0xffff_ffff)) // which the library refuses
	a.read(packet(5, 0))
}
