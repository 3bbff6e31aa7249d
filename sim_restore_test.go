package hapax_test

import "time"

// restoreLater takes a backup, lets the nodes work, and puts the backup back,
// perhaps while a node is down; another may join. The nodes heal the store by
// themselves. It takes more than a heartbeat until every node has written to the
// store since the backup; and a node that is cut off cannot speak up, so the links
// are whole when the backup is put back.
func (w *world) restoreLater(n *node) {
	if w.twin.keepsStore {
		return
	}
	for _, other := range w.nodes {
		other.mu.Lock()
		other.down = time.Time{}
		other.mu.Unlock()
	}
	time.Sleep(10 * time.Second)
	backup := w.store.Snapshot()
	time.Sleep(6*simHeartbeat + time.Duration(w.rng.Int64N(int64(20*time.Second))))
	w.setCalm(true)
	time.Sleep(10 * time.Second) // calls that began before have ended
	crashes := w.rng.IntN(2) == 0 && len(w.nodes) > 1
	if crashes {
		n.crash()
	}
	w.store.Restore(backup)
	if w.rng.IntN(2) == 0 && w.joined < joins {
		w.joined++
		w.join()
	}
	if crashes {
		time.Sleep(time.Duration(w.rng.Int64N(int64(3 * time.Second))))
		n.start()
	}
	time.Sleep(4 * simHeartbeat)
	w.setCalm(false)
	time.Sleep(time.Duration(w.rng.Int64N(int64(30 * time.Second))))
}

// join adds a node that nobody knows.
func (w *world) join() {
	n := w.newNode(len(w.nodes), w.nodes[0].workers)
	w.nodes = append(w.nodes, n)
	n.start()
	for k := range 2 {
		w.clients.Go(func() { n.client(k) })
	}
}
