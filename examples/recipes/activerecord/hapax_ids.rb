# frozen_string_literal: true

require "json"
require "net/http"

# Numbers issues the numbers of one tag, fetched in batches. Safe for threads, and for
# servers that fork.
class Numbers
  def initialize(tag, count: 100, server: ENV.fetch("HAPAX_SERVER", "http://127.0.0.1:8080"))
    @uri = URI("#{server}/v1/tags/#{tag}/ids?count=#{count}")
    @lock = Mutex.new
    @batch = []
    @pid = Process.pid
  end

  def next
    @lock.synchronize do
      # Parent and child would issue the same rest of a batch.
      @batch, @pid = [], Process.pid if @pid != Process.pid
      @batch = fetch if @batch.empty?
      @batch.shift
    end
  end

  private

  def fetch
    answer = Net::HTTP.post(@uri, "")
    raise "hapax: #{answer.code}: #{answer.body}" unless answer.is_a?(Net::HTTPSuccess)

    JSON.parse(answer.body).fetch("ids").map { |n| Integer(n, 10) }
  end
end
