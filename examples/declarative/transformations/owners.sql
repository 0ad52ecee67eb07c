-- How many topics each hub owns.
CREATE MATERIALIZED VIEW owners AS
SELECT owner, count(*) AS topics FROM topics GROUP BY owner;
