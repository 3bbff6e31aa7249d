package client

// Waiting returns how many callers of Next wait for another's request.
func Waiting(c *Client, tag string) int {
	c.joints.mu.Lock()
	defer c.joints.mu.Unlock()
	if t := c.joints.tags[tag]; t != nil {
		return t.requests.Waiting()
	}
	return 0
}
