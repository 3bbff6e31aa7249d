# frozen_string_literal: true

# ActiveRecord, as in Rails: a callback gives each new record a number from hapax.
require "active_record"
require_relative "hapax_ids"

URL = ENV.fetch("DATABASE_URL")
ActiveRecord::Base.establish_connection(URL)
ORDERS = Numbers.new("activerecord-orders")

# In an application this is a concern that models include.
class Order < ActiveRecord::Base
  self.table_name = "recipe_activerecord"
  before_create { self.id ||= ORDERS.next }
end

if ARGV[0] == "create"
  ActiveRecord::Schema.verbose = false
  ActiveRecord::Schema.define do
    create_table(:recipe_activerecord, id: false) do |t|
      t.bigint :id, primary_key: true
      t.text :what, null: false
    end
  end
  exit
end

n = Integer(ARGV[0])
Order.create!(what: "before the fork")
ActiveRecord::Base.connection_handler.clear_all_connections! # a connection is not shared, either
child = fork do
  ActiveRecord::Base.establish_connection(URL)
  (2 * n).times { |i| Order.create!(what: "child's #{i}") }
end
n.times { |i| Order.create!(what: "order #{i}") }
Order.insert_all!(Array.new(n) { |i| { id: ORDERS.next, what: "bulk #{i}" } }) # calls no callbacks
Process.wait(child)
exit $?.success?
